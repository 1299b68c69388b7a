# expect: killed, failed, error
import os

os.kill(os.getpid(), 15)
os.kill(os.getpid(), 9)
