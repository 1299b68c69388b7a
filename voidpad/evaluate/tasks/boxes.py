"""The box that MATH answers end in; apart from the scoring, so that reading data does not load sympy."""


def boxed(text: str) -> str | None:
    """The content of the last box; an unbalanced last box is no box, and earlier ones are not tried."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth = 0
    for at in range(start + len(r"\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + len(r"\boxed{") : at].strip() or None
    return None
