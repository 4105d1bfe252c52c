"""Every test of the suite, against the development broker; the real one is in integration/."""

from integration.contract.test_acks import *  # noqa: F403
from integration.contract.test_counts import *  # noqa: F403
from integration.contract.test_delays import *  # noqa: F403
from integration.contract.test_delivery import *  # noqa: F403
from integration.contract.test_encrypted import *  # noqa: F403
from integration.contract.test_encryption import *  # noqa: F403
from integration.contract.test_frames import *  # noqa: F403
from integration.contract.test_life import *  # noqa: F403
from integration.contract.test_mistakes import *  # noqa: F403
from integration.contract.test_nacks import *  # noqa: F403
from integration.contract.test_positions import *  # noqa: F403
from integration.contract.test_reconnects import *  # noqa: F403
from integration.contract.test_routing import *  # noqa: F403
from integration.contract.test_schemas import *  # noqa: F403
from integration.contract.test_topics import *  # noqa: F403
from integration.contract.test_watchers import *  # noqa: F403
