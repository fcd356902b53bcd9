"""Deployed training as a job of NVFlare. Needs the extra `nvflare`; nothing outside this package imports it.

Where things run:

    server   job process     `SecaggController`: the training server, which speaks through a `CellCarrier`
    site     parent process  `SecaggSite`, which the site configures: keys, policy, ledger, data, training
    site     job process     `SecaggExecutor`: waits for the parent process, and holds nothing

A job cannot bring code or settings into a site's parent process. That process also survives the job's, and is
back as soon as the site is restarted: NVFlare does not deploy a running job again to a site that was killed.
In NVFlare's simulator there are no parent processes, so that the executor does their work.
"""
