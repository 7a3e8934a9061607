"""One training program a framework, each a module with `train(job, observer)`, called in every rank's own process.

Rules: saves after the steps of `SAVED_STEPS` if the job says so; resumes by the framework's own rule for the newest
checkpoint, the way its documentation tells users to; uses the framework's defaults, for they are what is judged.
"""
