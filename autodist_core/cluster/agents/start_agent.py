"""Start the agent of one node: as a child on the chief's node, else over ssh or where a scheduler started it.

An `AgentProcess` is the process of one agent, in whatever way it was started, and the pipes to it. Its ``connection``
is the ssh connection to its machine, if there is one. It says how the process ended, kills it, and closes the pipes.
"""

from autodist_core.cluster.agents.agent_over_ssh import AgentOverSSH
from autodist_core.cluster.agents.child_agent import ChildAgent
from autodist_core.cluster.agents.deadlines import Deadlines
from autodist_core.cluster.agents.scheduled_agent import ScheduledAgent
from autodist_core.resource_spec import Node, SSHGroup

AgentProcess = ChildAgent | AgentOverSSH | ScheduledAgent


def start_agent(node: Node, group: SSHGroup, deadlines: Deadlines, keepalive: float) -> AgentProcess:
    """Start the agent of a node, or connect to the one that a scheduler started there.

    Over ssh, a connection that is silent for longer than `keepalive` seconds is closed.

    >>> agent = start_agent(Node("localhost", chief=True), SSHGroup(), Deadlines(), keepalive=10)
    >>> agent.connection is None
    True
    >>> agent.close()
    """
    env = {"TF_CPP_MIN_LOG_LEVEL": "1", **dict(group.shared_envs)}
    if not node.gpus:
        env["CUDA_VISIBLE_DEVICES"] = "-1"
    if node.chief:
        return ChildAgent(env)
    if node.agent_port is not None:
        return ScheduledAgent(node.address, node.agent_port, deadlines.scheduled)
    return AgentOverSSH(node, group, env, deadlines.connect, keepalive)
