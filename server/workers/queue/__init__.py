"""The queue by demand: for people, and for autoscalers that start workers."""
