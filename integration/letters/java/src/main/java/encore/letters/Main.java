package encore.letters;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * The Java client, driven line by line: a command on stdin, its answer on stdout as lines of JSON
 * that end with {@code {"done": true}}. Arguments hold no blanks.
 *
 * <pre>
 * produce TOPIC COUNT BATCHED      messages m0, m1 ... with key, ordering key, event time, property
 * keys TOPIC                       messages with keys of bytes: 4 of them, 12, and a key-value pair
 * consume TOPIC SUBSCRIPTION MAX ACTION MESSAGES DELAY_MS   up to MESSAGES, each printed and then
 *                                  reconsume | nack | ack
 * fleet TOPIC SUBSCRIPTION MAX CONSUMERS nack|timeout NAMES...   one batch of the names, tried by
 *                                  several consumers, each delivery printed; names that begin
 *                                  with p fail, those with o fail once, those with s take 200 ms
 * read TOPIC                       everything on a topic
 * </pre>
 */
public final class Main {
    private static final int QUIET_SECONDS = 4;

    private final PulsarClient client;

    private Main(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            Main main = new Main(client);
            System.out.println("{\"ready\": true}");
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                try {
                    main.run(line.split(" "));
                    System.out.println("{\"done\": true}");
                } catch (Exception error) {
                    System.out.println("{\"error\": " + text(error.toString()) + "}");
                }
            }
        }
    }

    private void run(String[] words) throws Exception {
        switch (words[0]) {
            case "produce" -> produce(words[1], Integer.parseInt(words[2]), "batched".equals(words[3]));
            case "keys" -> keys(words[1]);
            case "consume" -> consume(words[1], words[2], Integer.parseInt(words[3]), words[4],
                    Integer.parseInt(words[5]), Long.parseLong(words[6]));
            case "fleet" -> fleet(words[1], words[2], Integer.parseInt(words[3]),
                    Integer.parseInt(words[4]), words[5], List.of(words).subList(6, words.length));
            case "read" -> read(words[1]);
            default -> throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    private void produce(String topic, int count, boolean batched) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(batched)
                .batchingMaxPublishDelay(200, TimeUnit.MILLISECONDS).create()) {
            List<CompletableFuture<MessageId>> sends = new ArrayList<>();
            for (int each = 0; each < count; each++) {
                TypedMessageBuilder<byte[]> message = producer.newMessage();
                message.value(("m" + each).getBytes(StandardCharsets.UTF_8)).key("k" + each);
                message.orderingKey(("o" + each).getBytes(StandardCharsets.UTF_8));
                message.eventTime(1000 + each).property("colour", "red");
                sends.add(message.sendAsync());
            }
            for (CompletableFuture<MessageId> send : sends) {
                send.get(30, TimeUnit.SECONDS);
            }
        }
    }

    private void keys(String topic) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            producer.newMessage().value("padded".getBytes(StandardCharsets.UTF_8))
                    .keyBytes(new byte[] {0, 1, 2, -1}).send();
            producer.newMessage().value("threes".getBytes(StandardCharsets.UTF_8))
                    .keyBytes(new byte[12]).send();
            producer.newMessage().value("text".getBytes(StandardCharsets.UTF_8)).key("k=").send();
        }
        Schema<KeyValue<String, String>> pair =
                Schema.KeyValue(Schema.STRING, Schema.STRING, KeyValueEncodingType.SEPARATED);
        try (Producer<KeyValue<String, String>> producer =
                client.newProducer(pair).topic(topic + "-pairs").create()) {
            producer.newMessage().value(new KeyValue<>("abc", "pair")).send();
        }
    }

    private void consume(String topic, String subscription, int most, String action, int messages,
            long delayMs) throws Exception {
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(most).build();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic)
                .subscriptionName(subscription).subscriptionType(SubscriptionType.Shared)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .enableRetry(true).deadLetterPolicy(policy).enableBatchIndexAcknowledgment(true)
                .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS).subscribe()) {
            for (int each = 0; each < messages; each++) {
                Message<byte[]> message = consumer.receive(QUIET_SECONDS, TimeUnit.SECONDS);
                if (message == null) {
                    return;
                }
                print(message);
                switch (action) {
                    case "reconsume" ->
                            consumer.reconsumeLater(message, delayMs, TimeUnit.MILLISECONDS);
                    case "nack" -> consumer.negativeAcknowledge(message);
                    default -> consumer.acknowledge(message);
                }
            }
            if ("nack".equals(action)) {
                Thread.sleep(1500);  // the last nack is due, comes back hidden and is dead-lettered
            }
        }
    }

    private void fleet(String topic, String subscription, int most, int count, String failure,
            List<String> names) throws Exception {
        boolean timesOut = "timeout".equals(failure);
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(most).build();
        AtomicLong last = new AtomicLong(System.currentTimeMillis());
        Map<String, Integer> attempts = new TreeMap<>();
        List<Consumer<byte[]>> consumers = new ArrayList<>();
        try {
            for (int each = 0; each < count; each++) {
                ConsumerBuilder<byte[]> builder = client.newConsumer().topic(topic)
                        .subscriptionName(subscription).subscriptionType(SubscriptionType.Shared)
                        .deadLetterPolicy(policy).enableBatchIndexAcknowledgment(true)
                        .negativeAckRedeliveryDelay(200, TimeUnit.MILLISECONDS)
                        .messageListener((consumer, message) -> {
                            last.set(System.currentTimeMillis());
                            int attempt;
                            synchronized (this) {
                                print(message);
                                attempt = attempts.merge(new String(message.getData(),
                                        StandardCharsets.UTF_8), 1, Integer::sum);
                            }
                            byte kind = message.getData()[0];
                            if (kind == 's') {
                                LockSupport.parkNanos(200_000_000);
                            }
                            if (kind != 'p' && !(kind == 'o' && attempt == 1)) {
                                consumer.acknowledgeAsync(message);
                            } else if (!timesOut) {
                                consumer.negativeAcknowledge(message);
                            }
                        });
                if (timesOut) {
                    builder.ackTimeout(1, TimeUnit.SECONDS)
                            .ackTimeoutTickTime(100, TimeUnit.MILLISECONDS);
                }
                consumers.add(builder.subscribe());
            }
            try (Producer<byte[]> producer = client.newProducer().topic(topic)
                    .batchingMaxPublishDelay(500, TimeUnit.MILLISECONDS)
                    .batchingMaxMessages(names.size()).create()) {
                List<CompletableFuture<MessageId>> sends = new ArrayList<>();
                for (String name : names) {
                    sends.add(producer.sendAsync(name.getBytes(StandardCharsets.UTF_8)));
                }
                for (CompletableFuture<MessageId> send : sends) {
                    send.get(30, TimeUnit.SECONDS);
                }
            }
            while (System.currentTimeMillis() - last.get() < QUIET_SECONDS * 1000) {
                Thread.sleep(100);
            }
        } finally {
            for (Consumer<byte[]> consumer : consumers) {
                consumer.close();
            }
        }
    }

    private void read(String topic) throws Exception {
        try (Reader<byte[]> reader = client.newReader().topic(topic)
                .startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                print(reader.readNext(QUIET_SECONDS, TimeUnit.SECONDS));
            }
        }
    }

    private static void print(Message<byte[]> message) {
        StringJoiner properties = new StringJoiner(", ", "{", "}");
        for (Map.Entry<String, String> one : new TreeMap<>(message.getProperties()).entrySet()) {
            properties.add(text(one.getKey()) + ": " + text(one.getValue()));
        }
        byte[] ordering = message.getOrderingKey();
        System.out.println("{\"at_ms\": " + System.currentTimeMillis()
                + ", \"data\": " + text(new String(message.getData(), StandardCharsets.UTF_8))
                + ", \"topic\": " + text(message.getTopicName())
                + ", \"key\": " + text(message.getKey())
                + ", \"ordering_key\": "
                + text(ordering == null ? null : new String(ordering, StandardCharsets.UTF_8))
                + ", \"event_ms\": " + message.getEventTime()
                + ", \"publish_ms\": " + message.getPublishTime()
                + ", \"redelivery_count\": " + message.getRedeliveryCount()
                + ", \"producer\": " + text(message.getProducerName())
                + ", \"properties\": " + properties + "}");
    }

    private static String text(String value) {
        if (value == null) {
            return "null";
        }
        StringBuilder json = new StringBuilder("\"");
        for (char each : value.toCharArray()) {
            if (each < ' ' || each > '~' || each == '"' || each == '\\') {
                json.append(String.format("\\u%04x", (int) each));
            } else {
                json.append(each);
            }
        }
        return json.append('"').toString();
    }
}
