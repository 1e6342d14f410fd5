from django.db import models


class Order(models.Model):
    name = models.CharField(max_length=100)
    state = models.CharField(max_length=100, default="new")
