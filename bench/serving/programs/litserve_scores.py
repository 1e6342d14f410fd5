"""LitServe: an API and its workers for each model."""

import litserve
import scoring


class Scores(litserve.LitAPI):
    def setup(self, device):
        self.scorer = scoring.Scorer()

    def predict(self, request):
        return self.scorer.score(request["path"])


if __name__ == "__main__":
    apis = [Scores(api_path=f"/{name}") for name in scoring.NAMES]
    server = litserve.LitServer(
        apis, accelerator="cpu", workers_per_device=scoring.WORKERS, timeout=60, restart_workers=True
    )
    server.run(host="127.0.0.1", port=scoring.PORT, num_api_servers=1, generate_client_file=False, log_level="error")
