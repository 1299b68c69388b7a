# expect: output
while True:
    print("passed" * 1000)
