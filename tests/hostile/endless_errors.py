# expect: output (slow)
# The other output, and unbuffered.
import os

while True:
    os.write(2, b"x" * 4096)
