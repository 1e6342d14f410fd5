"""The admin process: HTTP API, dashboard and metrics, in one supervised child that is off unless `[admin]` asks.

    entry.py     the child: from its fork to its end
    server.py    the HTTP server, obeying the supervisor; connection.py has its limits on time and connections
    access middleware.py      who may come in: hosts, tokens, origins, sizes; keys.py knows the tokens and sessions
    login.py     how a browser keeps the token that it was shown once
    app.py       everything wired together; errors.py says what went wrong
    state.py    what every route may use
    executor.py      questions to the database, asked on threads of its own
    watch.py     the state of everything, looked at once for all who ask
    api/         the JSON endpoints, one file a subject
    metrics.py   the same numbers for a scraper
    pages.py     the dashboard, with rendering.py, templates/ and static/

Nothing else imports this package, and it is imported after the fork only: no other process carries a web
framework. It reads through the store's `Operations`, and changes things only as the command line does.
"""
