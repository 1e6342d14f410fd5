import json
import uuid
from pathlib import Path

from fastapi import FastAPI, Request, UploadFile
from fastapi.responses import JSONResponse, StreamingResponse
from jobs import count

from supervisor import AsyncQueue, JobNotFound

app = FastAPI()
queue = AsyncQueue("sqlite:///app.db")  # the database in supervisor.toml


@app.post("/texts", status_code=202)
async def upload(file: UploadFile) -> dict[str, int]:
    path = Path(f"{uuid.uuid4()}.txt")
    path.write_bytes(await file.read())
    return {"job": await count.options(queue=queue).aenqueue(str(path))}


@app.get("/jobs/{job_id}")
async def result(job_id: int) -> dict[str, object]:
    job = await queue.job(job_id)
    return {"status": job.status, "result": job.result}


@app.get("/jobs/{job_id}/events")
async def events(job_id: int) -> StreamingResponse:
    await queue.job(job_id)  # JobNotFound before the response has begun
    lines = (f"data: {json.dumps(event.as_json())}\n\n" async for event in queue.events(job_id))
    return StreamingResponse(lines, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


@app.exception_handler(JobNotFound)
async def not_found(request: Request, error: JobNotFound) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 404)
