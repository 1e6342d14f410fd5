import json
import uuid
from pathlib import Path

from flask import Flask, Response, request
from jobs import count

from supervisor import JobNotFound, Queue, configure

app = Flask(__name__)
DATABASE = "sqlite:///app.db"  # the one in supervisor.toml
configure(DATABASE)  # for count.enqueue
queue = Queue(DATABASE)


@app.post("/texts")
def upload():
    path = Path(f"{uuid.uuid4()}.txt")
    request.files["file"].save(path)
    return {"job": count.enqueue(str(path))}, 202


@app.get("/jobs/<int:job_id>")
def result(job_id):
    job = queue.job(job_id)
    return {"status": job.status, "result": job.result}


@app.get("/jobs/<int:job_id>/events")
def events(job_id):
    queue.job(job_id)  # JobNotFound before the response has begun
    lines = (f"data: {json.dumps(event.as_json())}\n\n" for event in queue.events(job_id))
    return Response(lines, mimetype="text/event-stream")


@app.errorhandler(JobNotFound)
def not_found(error):
    return {"error": str(error)}, 404
