"""Consumers on a RabbitMQ node behind a delay: contenders, disturbances, figures."""
