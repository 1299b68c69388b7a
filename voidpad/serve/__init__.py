"""The HTTP server: OpenAI's interface in front of one engine, and a page that shows the canvas.

A request in the order of what happens to it: `app.py` has the routes and checks who may ask (`options.py`),
`protocol.py` and `responses.py` have the bodies that clients may send, `requests.py` turns one into prompts and a plan,
`engine_thread.py` decodes them beside the event loop, and `live.py` holds the answers until the last byte of the reply
(`answer_text.py` makes the text, `logprobs.py` the log-probabilities, `responses.py` the objects of `/v1/responses`).

`server.py` starts and stops the process, `replicas.py` puts several on Ray Serve, `monitoring.py` has the metrics and
the log lines, `live_page.py` the page.
"""
