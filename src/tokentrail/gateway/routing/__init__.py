"""Who answers: routes and their scenarios, choice by weight, health, second attempts, stand-ins.

A `RoutingBackend` stands before the engines of this machine and remote upstreams (`Target`s). Each target has a
`Circuit` that says whether it may be asked now; a `Plan` says which targets a name stands for; a `RoutedAnswer` asks
one after the other, or two at once, until the first piece of an answer has come.
"""

from tokentrail.gateway.routing.backend import RoutingBackend, check_routes

__all__ = ["RoutingBackend", "check_routes"]
