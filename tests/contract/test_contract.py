"""Every test of the contract suite, against the development broker."""

from tests.harness.contract.test_acks import *  # noqa: F403
from tests.harness.contract.test_codecs import *  # noqa: F403
from tests.harness.contract.test_counts import *  # noqa: F403
from tests.harness.contract.test_delays import *  # noqa: F403
from tests.harness.contract.test_delivery import *  # noqa: F403
from tests.harness.contract.test_encrypted import *  # noqa: F403
from tests.harness.contract.test_encryption import *  # noqa: F403
from tests.harness.contract.test_frames import *  # noqa: F403
from tests.harness.contract.test_held import *  # noqa: F403
from tests.harness.contract.test_life import *  # noqa: F403
from tests.harness.contract.test_mistakes import *  # noqa: F403
from tests.harness.contract.test_nacks import *  # noqa: F403
from tests.harness.contract.test_positions import *  # noqa: F403
from tests.harness.contract.test_questions import *  # noqa: F403
from tests.harness.contract.test_reconnects import *  # noqa: F403
from tests.harness.contract.test_routing import *  # noqa: F403
from tests.harness.contract.test_schemas import *  # noqa: F403
from tests.harness.contract.test_topics import *  # noqa: F403
from tests.harness.contract.test_transactional_acks import *  # noqa: F403
from tests.harness.contract.test_watchers import *  # noqa: F403
