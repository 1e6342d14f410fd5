import json
import uuid
from pathlib import Path

from django.conf import settings
from django.http import HttpResponseNotFound, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.http import require_POST
from jobs import count

from supervisor import JobNotFound, Queue

queue = Queue(f"sqlite:///{settings.BASE_DIR}/app.db")


@require_POST
def upload(request):
    file = Path(f"{uuid.uuid4()}.txt")
    file.write_bytes(request.FILES["file"].read())
    return JsonResponse({"job": int(count.enqueue(str(file)).id)}, status=202)


def result(request, job_id):
    try:
        job = queue.job(job_id)
    except JobNotFound as error:
        return HttpResponseNotFound(str(error))
    return JsonResponse({"status": job.status, "result": job.result})


def events(request, job_id):
    lines = (f"data: {json.dumps(event.as_json())}\n\n" for event in queue.events(job_id))
    return StreamingHttpResponse(lines, content_type="text/event-stream")


urlpatterns = [
    path("texts", upload),
    path("jobs/<int:job_id>", result),
    path("jobs/<int:job_id>/events", events),
]
