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
 * that end with {@code {"done": true}}. Arguments contain no blanks.
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
 * send-values TOPIC SCHEMA BATCHED values of a schema, nulls among them
 * read-values TOPIC SCHEMA         getValue of everything on a topic, or the class of its exception
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
            case "send-values" -> sendValues(words[1], words[2], "batched".equals(words[3]));
            case "read-values" -> readValues(words[1], words[2]);
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
                Thread.sleep(1500);  // the last nack is due; the client receives it internally and dead-letters it
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

    /** A record of JSON and of Avro. */
    public static final class Box {
        public Integer width;

        @Override
        public String toString() {
            return "width " + width;
        }
    }

    public enum Colour { RED, BLUE }

    /** A record in a list and a map of {@link Order}. */
    public static final class Line {
        public String sku;
        public int count;

        @Override
        public String toString() {
            return count + " of " + sku;
        }
    }

    /** The key of a pair. */
    public static final class OrderKey {
        public long id;

        @Override
        public String toString() {
            return "key " + id;
        }
    }

    /** A record with a field of each form that JSON has. */
    public static final class Order {
        public long id;
        public int count;
        public double total;
        public float share;
        public boolean paid;
        public String name;
        public Long number;
        public Colour colour;
        public byte[] raw;
        public List<Line> lines;
        public Map<String, Line> bySku;
        public List<Colour> colours;

        static Order example() {
            Line line = new Line();
            line.sku = "x";
            line.count = 2;
            Order order = new Order();
            order.id = 7;
            order.count = 3;
            order.total = 1.5;
            order.share = 0.5f;
            order.paid = true;
            order.name = "Ada";
            order.colour = Colour.BLUE;
            order.raw = new byte[] {-1, 0};
            order.lines = List.of(line);
            order.bySku = Map.of("x", line);
            order.colours = List.of(Colour.RED);
            return order;
        }

        @Override
        public String toString() {
            return id + " " + count + " " + total + " " + share + " " + paid + " " + name + " "
                    + number + " " + colour + " " + List.of(raw[0], raw[1]) + " " + lines + " "
                    + bySku + " " + colours;
        }
    }

    private static Kind<KeyValue<OrderKey, Order>> orders(
            Schema<OrderKey> key, Schema<Order> value, KeyValueEncodingType encoding) {
        OrderKey id = new OrderKey();
        id.id = 5;
        List<KeyValue<OrderKey, Order>> pairs = new ArrayList<>();
        pairs.add(new KeyValue<>(id, Order.example()));
        pairs.add(new KeyValue<>(id, null));
        pairs.add(new KeyValue<>(null, Order.example()));
        pairs.add(null);
        return new Kind<>(Schema.KeyValue(key, value, encoding), pairs);
    }

    /** A schema with the values to send; null is a message without a value. */
    private record Kind<T>(Schema<T> schema, List<T> values) {}

    private static Kind<?> kind(String name) {
        Box box = new Box();
        box.width = 1;
        List<KeyValue<String, String>> pairs = new ArrayList<>();
        pairs.add(new KeyValue<>("k", "v"));
        pairs.add(null);
        pairs.add(new KeyValue<>("k", null));
        pairs.add(new KeyValue<>(null, "v"));
        pairs.add(new KeyValue<>(null, null));
        pairs.add(new KeyValue<>("k", ""));
        pairs.add(new KeyValue<>("", "v"));
        return switch (name) {
            case "bytes" -> new Kind<>(Schema.BYTES, orNull(new byte[] {'v'}, new byte[0]));
            case "string" -> new Kind<>(Schema.STRING, orNull("v", ""));
            case "int32" -> new Kind<>(Schema.INT32, orNull(1));
            case "json" -> new Kind<>(Schema.JSON(Box.class), orNull(box));
            case "avro" -> new Kind<>(Schema.AVRO(Box.class), orNull(box));
            case "separated" -> new Kind<>(Schema.KeyValue(Schema.STRING, Schema.STRING,
                    KeyValueEncodingType.SEPARATED), pairs);
            case "inline" -> new Kind<>(Schema.KeyValue(Schema.STRING, Schema.STRING,
                    KeyValueEncodingType.INLINE), pairs);
            case "order" -> new Kind<>(Schema.JSON(Order.class), orNull(Order.example()));
            case "order-avro" -> new Kind<>(Schema.AVRO(Order.class), orNull(Order.example()));
            case "order-inline" -> orders(Schema.JSON(OrderKey.class), Schema.JSON(Order.class),
                    KeyValueEncodingType.INLINE);
            case "order-separated" -> orders(Schema.JSON(OrderKey.class),
                    Schema.JSON(Order.class), KeyValueEncodingType.SEPARATED);
            case "order-avro-separated" -> orders(Schema.AVRO(OrderKey.class),
                    Schema.AVRO(Order.class), KeyValueEncodingType.SEPARATED);
            default -> throw new IllegalArgumentException("no schema " + name);
        };
    }

    @SafeVarargs
    private static <T> List<T> orNull(T... values) {
        List<T> all = new ArrayList<>(List.of(values));
        all.add(null);
        return all;
    }

    private void sendValues(String topic, String schema, boolean batched) throws Exception {
        sendValues(topic, kind(schema), batched);
    }

    private <T> void sendValues(String topic, Kind<T> kind, boolean batched) throws Exception {
        try (Producer<T> producer = client.newProducer(kind.schema()).topic(topic)
                .enableBatching(batched).batchingMaxPublishDelay(200, TimeUnit.MILLISECONDS)
                .create()) {
            List<CompletableFuture<MessageId>> sends = new ArrayList<>();
            for (T value : kind.values()) {
                sends.add(producer.newMessage().value(value).sendAsync());
            }
            for (CompletableFuture<MessageId> send : sends) {
                send.get(30, TimeUnit.SECONDS);
            }
        }
    }

    private void readValues(String topic, String schema) throws Exception {
        if ("auto".equals(schema)) {
            readValues(topic, Schema.AUTO_CONSUME());
        } else {
            readValues(topic, kind(schema).schema());
        }
    }

    private <T> void readValues(String topic, Schema<T> schema) throws Exception {
        try (Reader<T> reader = client.newReader(schema).topic(topic)
                .startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                Message<T> message = reader.readNext(QUIET_SECONDS, TimeUnit.SECONDS);
                byte[] data = message.getData();
                String value = null;
                String failure = null;
                try {
                    T read = message.getValue();
                    value = read instanceof byte[] bytes
                            ? new String(bytes, StandardCharsets.UTF_8)
                            : read == null ? null : read.toString();
                } catch (Throwable error) {
                    failure = error.getClass().getSimpleName();
                }
                System.out.println("{\"value\": " + text(value) + ", \"failure\": " + text(failure)
                        + ", \"data\": "
                        + text(data == null ? null : new String(data, StandardCharsets.UTF_8))
                        + ", \"key\": " + text(message.getKey())
                        + ", \"has_key\": " + message.hasKey() + "}");
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
                + ", \"data\": " + text(message.getData() == null ? null
                        : new String(message.getData(), StandardCharsets.UTF_8))
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
