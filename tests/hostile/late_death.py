# expect: killed
# Closes its channel first and dies a while later, as a process does that is slow to end.
import os
import time

os.close(3)
time.sleep(0.5)
os.abort()
