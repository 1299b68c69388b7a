# expect: timeout
# Closes its channel, so that its checks end, and goes on.
import os

os.close(3)
while True:
    pass
