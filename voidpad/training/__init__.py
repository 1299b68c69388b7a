"""Training. Read train.py first, from top to bottom; it puts the others together.

What is learnt: recipe.py (all settings and their defaults), padding.py (what follows an answer), losses.py (noise and
loss). How: setup.py (what a recipe names, built), batches.py (rows, updates and passes), optim.py, checkpoint.py.
On what: chats.py (formats of conversations), corpus.py (conversations to examples), prepared.py (the file of examples).
"""
