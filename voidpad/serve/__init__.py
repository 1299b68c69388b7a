"""The HTTP server: OpenAI's interface in front of one engine, and a page that shows the canvas.

`requests.py` checks what clients send (`json_fields.py` has the means), `choice.py` turns committed tokens into
text (`logprobs.py` keeps their log-probabilities), `engine_thread.py` runs
the engine beside the event loop, `replies.py` writes what clients receive, `app.py` has the routes,
`access.py` keys and host names, `server.py` starts and stops the process, `replicas.py` puts several on Ray Serve.
"""
