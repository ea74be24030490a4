"""One typed event stream; log line, metric, audit record and dashboard are views of it."""
