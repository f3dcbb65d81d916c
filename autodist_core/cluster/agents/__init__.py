"""The chief's end of the agents: one handle for each agent, whatever way the agent was started.

In reading order:

- ``agent_handle``: orders and answers, signs of life, and the last lines of the agent's log.
- ``ssh_agent``: an agent that this process starts on another machine over ssh.
- ``in_parallel``: one action on several agents at the same time.
- ``deadlines``: for how long the chief waits for each kind of answer.

It imports ``protocol`` and ``ssh``. The folders ``doctor`` and ``chief`` import it.
"""
