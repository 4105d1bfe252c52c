package encore.benchmarks;

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Receives and acknowledges messages, and prints rate and CPU time.
 *
 * <p>The argument is a service URL. Each line of standard input, "TOPIC SUBSCRIPTION COUNT", is one
 * measurement on a new subscription, and each answer is a line of JSON. One process makes all
 * measurements of a topic, so that the JIT compiler has compiled the hot code.
 *
 * <p>CPU time is that of the process, so it includes garbage collection and compilation. The first
 * message of a subscription comes before the measurement begins.
 */
public final class Receive {
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private Receive() {}

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build();
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line; (line = lines.readLine()) != null; ) {
                String[] words = line.split(" ");
                System.out.println(measure(client, words[0], words[1], Integer.parseInt(words[2])));
            }
        }
    }

    private static String measure(PulsarClient client, String topic, String subscription, int count)
            throws Exception {
        try (Consumer<byte[]> consumer =
                client.newConsumer()
                        .topic(topic)
                        .subscriptionName(subscription)
                        .subscriptionType(SubscriptionType.Shared)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
            Message<byte[]> message = consumer.receive();
            long began = System.nanoTime();
            long cpu = SYSTEM.getProcessCpuTime();
            for (int i = 0; i < count; i++) {
                consumer.acknowledge(message);
                message = consumer.receive();
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            double cpuMicros = (SYSTEM.getProcessCpuTime() - cpu) / 1e3;
            return "{\"per_s\": " + count / seconds + ", \"cpu_us\": " + cpuMicros / count + "}";
        }
    }
}
