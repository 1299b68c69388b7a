"""The HTTP server: OpenAI's interface in front of one engine, and a page that shows the canvas.

`protocol.py` has the bodies that clients may send, `requests.py` turns them into prompts and plans, `live.py` holds a
request from there to its replies (`answer_text.py` makes the text, `logprobs.py` the log-probabilities, `responses.py`
the objects of `/v1/responses`),
`engine_thread.py` runs the engine beside the event loop, `app.py` has the routes, `options.py` the settings and who may
ask, `monitoring.py` metrics and log lines, `live_page.py` the page, `server.py` starts and stops the process,
`replicas.py` puts several on Ray Serve.
"""
