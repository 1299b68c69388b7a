# expect: failed, error
# Files that are hard to remove: odd names, links, folders without rights, very deep ones.
import os

for name in (
    b"\xff\xfe",
    b"a\nb",
    b" ",
    b"-rf",
    b"...",
    "\u202e".encode(),
    b"x" * 255,
    b"$(touch x)",
    b"\x1b[31m",
):
    os.mkdir(name)
    open(os.path.join(name, name), "w").close()
for number, target in enumerate(("/", "/etc/passwd", "..", "../..", os.getcwd(), "/proc/self", "loop")):
    os.symlink(target, f"link{number}")
os.symlink("loop", "loop")
os.makedirs("a/b/c")
open("a/b/c/file", "w").close()
for path in ("a/b/c/file", "a/b/c", "a/b", "a"):
    os.chmod(path, 0)
for _ in range(2000):
    os.mkdir("d")
    os.chdir("d")
