"""Measurements that several brokers share."""
