# expect: error
square = int(input("the answer? "))
