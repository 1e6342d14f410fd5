"""The handlers of job-supervisor: one model for a pool, or all of them in one pool."""

import scoring


class One:
    def setup(self, ctx):
        self.scorer = scoring.Scorer()

    def handle(self, payload, ctx):
        return self.scorer.score(payload["path"])


class All:
    def setup(self, ctx):
        self.scorers = {name: scoring.Scorer() for name in scoring.NAMES}

    def handle(self, payload, ctx):
        return self.scorers[ctx.type].score(payload["path"])
