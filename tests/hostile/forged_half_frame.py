# expect: timeout (slow)
# A message whose end never comes.
import os
import time

os.write(3, b'["ok", [')
time.sleep(10**6)
