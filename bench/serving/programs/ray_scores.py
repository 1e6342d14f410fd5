"""Ray Serve: an application and its replicas for each model."""

import signal
from pathlib import Path

import ray
import scoring
from ray import serve


@serve.deployment(num_replicas=scoring.WORKERS, ray_actor_options={"num_cpus": 0.1})
class Scores:
    def __init__(self):
        self.scorer = scoring.Scorer()

    async def __call__(self, request):
        return self.scorer.score((await request.json())["path"])


if __name__ == "__main__":
    ray.init(include_dashboard=False, _temp_dir=str(Path.cwd()), object_store_memory=80 * 2**20, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": scoring.PORT})
    for name in scoring.NAMES:
        serve.run(Scores.bind(), name=name, route_prefix=f"/{name}")
    signal.pause()
