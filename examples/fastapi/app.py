import json
import uuid
from pathlib import Path

from fastapi import FastAPI, UploadFile
from fastapi.responses import JSONResponse, StreamingResponse
from jobs import count

from supervisor import AsyncQueue, JobNotFound, configure

app = FastAPI(exception_handlers={JobNotFound: lambda request, error: JSONResponse({"error": str(error)}, 404)})
DATABASE = "sqlite:///app.db"  # the one in supervisor.toml
configure(DATABASE)  # for count.aenqueue
queue = AsyncQueue(DATABASE)


@app.post("/texts", status_code=202)
async def upload(file: UploadFile):
    path = Path(f"{uuid.uuid4()}.txt")
    path.write_bytes(await file.read())
    return {"job": await count.aenqueue(str(path))}


@app.get("/jobs/{job_id}")
async def result(job_id: int):
    job = await queue.job(job_id)
    return {"status": job.status, "result": job.result}


@app.get("/jobs/{job_id}/events")
async def events(job_id: int):
    await queue.job(job_id)  # JobNotFound before the response has begun
    lines = (f"data: {json.dumps(event.as_json())}\n\n" async for event in queue.events(job_id))
    return StreamingResponse(lines, media_type="text/event-stream")
