# expect: failed, error
# Hands over a built-in class as the function under test.

square = bool
