from django.db import transaction
from django.http import HttpResponseServerError, JsonResponse
from django.urls import path

from orders import tasks
from orders.models import Order


def buy(request):
    with transaction.atomic():
        order = Order.objects.create(name="lamp")
        result = tasks.ship.enqueue(order.id)
        if "fail" in request.GET:
            transaction.set_rollback(True)
            return HttpResponseServerError()
    return JsonResponse({"order": order.id, "task": result.id})


def state(request, task):
    result = tasks.ship.get_result(task)
    return JsonResponse({"status": result.status, "finished": result.is_finished})


urlpatterns = [path("buy", buy), path("state/<task>", state)]
