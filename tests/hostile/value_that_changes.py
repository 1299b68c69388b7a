# expect: failed
# A list whose length changes while it is encoded.
import threading

kept = list(range(1000))
threading.Thread(target=lambda: [kept.append(1) or kept.pop() for _ in range(10**5)], daemon=True).start()


def square(x):
    return kept
