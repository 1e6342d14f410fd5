"""mosec: a route and its workers for each model."""

import scoring
from mosec import Runtime, Server, Worker


class Scores(Worker):
    def __init__(self):
        self.scorer = scoring.Scorer()

    def forward(self, data):
        return self.scorer.score(data["path"])


if __name__ == "__main__":
    server = Server()
    server.register_runtime({f"/{name}": [Runtime(Scores, num=scoring.WORKERS)] for name in scoring.NAMES})
    server.run()
