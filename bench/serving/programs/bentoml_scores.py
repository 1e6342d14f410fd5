"""BentoML: one service with an API for each model, and its workers."""

import bentoml
import scoring


class Scores:
    def __init__(self):
        self.scorers = {name: scoring.Scorer() for name in scoring.NAMES}


def api(name):
    def score(self, path: str) -> dict:
        return self.scorers[name].score(path)

    score.__name__ = name
    return bentoml.api(score, route=f"/{name}")


for name in scoring.NAMES:
    setattr(Scores, name, api(name))

Scores = bentoml.service(workers=scoring.WORKERS, traffic={"timeout": 60})(Scores)
