# expect: memory, timeout (slow)

kept = []
while True:
    kept.append([])
