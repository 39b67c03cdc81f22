"""Files that outlive an attempt: checkpoints, exported models, logs, demonstrations, uploads.

A path in the store is relative, with `/` between plain segments, and carries the run and the attempt number
(`runs/run_01.../3/checkpoints/50000-2`), so that two attempts never write to the same place. Two stores have this face:
a folder (`folder`), and a bucket of S3 or of a server that speaks its protocol (`s3`). `opening` takes the one that the
settings name.
"""
