"""The HTTP server: OpenAI's interface in front of one engine, and a page that shows the canvas.

`protocol.py` has the bodies that clients may send, `requests.py` turns them into prompts and plans, `engine_thread.py`
runs the engine beside the event loop, `answer_text.py` turns committed tokens into text (`logprobs.py` keeps their
log-probabilities), `replies.py` writes what clients receive, `app.py` has the routes, `access.py` keys, host names and
origins, `monitoring.py` metrics and log lines, `server.py` starts and stops the process, `replicas.py` puts several on
Ray Serve.
"""
