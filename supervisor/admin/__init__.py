"""The admin process: HTTP API, dashboard and metrics, in a supervised child process that runs only with `[admin]`.

    app.py       the process from its fork to its end, and the application; state.py is what every route may use
    server.py    the HTTP server, controlled by the supervisor, with limits of times and connections
    answers.py   values as JSON; `Refused`, which anything here raises, and how it and other errors are answered
    access.py    access control: hosts, tokens, origins, sizes; keys.py has the tokens and sessions, login.py the form
    store_executor.py  database calls on separate threads
    streams.py   the overview, read once for all who request it or listen to it; who follows a job
    requests.py  jobs that are enqueued and waited for; uploads.py: files as their payload
    api/         the JSON endpoints, one file per subject
    metrics.py   the metrics for a scraper
    pages/       the dashboard, with rendering.py, formatting.py, charts.py, templates/ and static/

Nothing else imports this package, and it is imported only after the fork, so that no other process loads a web
framework. It reads through the store's `Operations`, and makes changes with the same functions as the command line.
"""
