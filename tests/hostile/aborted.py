# expect: killed
import os

os.abort()
