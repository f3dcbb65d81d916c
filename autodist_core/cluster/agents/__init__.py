"""The chief's end of the agents: one handle for each agent, whatever way the agent was started.

In reading order:

- ``deadlines``: for how long the chief waits for each kind of answer.
- ``child_agent``, ``agent_over_ssh``, ``scheduled_agent``: an agent as a child of this process, as a process on another
  machine that is started over ssh, and as one that a scheduler starts.
- ``agent_handle``: starts one of the three for a node; orders and answers, signs of life, and the last lines of the
  agent's log.
- ``in_parallel``: one action on several agents at the same time.
- ``tunnels``: ways between the nodes that go through ssh and this process.

It imports ``protocol`` and ``ssh``. The folders ``doctor`` and ``chief`` import it.
"""
