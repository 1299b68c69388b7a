# expect: memory, timeout, error (slow)
import threading


def grow(kept):
    while True:
        kept.append(bytes(1 << 20))


threads = [threading.Thread(target=grow, args=([],)) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
