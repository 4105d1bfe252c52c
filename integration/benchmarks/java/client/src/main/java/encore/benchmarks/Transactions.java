package encore.benchmarks;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Sends and acknowledges messages, plainly and in transactions, and prints the rates.
 *
 * <p>The argument is a service URL. Each line of standard input is one measurement, and each answer
 * is a line of JSON. The workloads are those of transaction_cost.py and java_transactions.py.
 */
public final class Transactions {
    private static final byte[] PAYLOAD = "x".repeat(100).getBytes();
    private static final int GROUP = 1_000;

    private final PulsarClient client;

    private Transactions(PulsarClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client =
                        PulsarClient.builder()
                                .serviceUrl(arguments[0])
                                .enableTransaction(true)
                                .build();
                BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            Transactions measurements = new Transactions(client);
            for (String line; (line = lines.readLine()) != null; ) {
                System.out.println(measurements.answer(line.split(" ")));
            }
        }
    }

    private String answer(String[] words) throws Exception {
        String topic = words[1];
        int count = Integer.parseInt(words[2]);
        return switch (words[0]) {
            case "sends" -> sends(topic, count, Integer.parseInt(words[3]));
            case "acks" -> acks(topic, count, words[3].equals("1"));
            default -> singles(topic, count, Integer.parseInt(words[3]), words[4]);
        };
    }

    private String sends(String topic, int count, int size) throws Exception {
        try (Producer<byte[]> producer =
                producer(topic).blockIfQueueFull(true).maxPendingMessages(20_000).create()) {
            int each = size > 0 ? size : 10_000;
            publish(producer, Math.min(each, 1_000), size > 0);
            long began = System.nanoTime();
            for (int start = 0; start < count; start += each) {
                publish(producer, Math.min(each, count - start), size > 0);
            }
            return rate(count, began);
        }
    }

    private void publish(Producer<byte[]> producer, int messages, boolean transactional)
            throws Exception {
        Transaction txn = transactional ? begin().get() : null;
        for (int i = 0; i < messages; i++) {
            message(producer, txn).sendAsync();
        }
        if (txn == null) {
            producer.flush();
        } else {
            txn.commit().get(); // waits for its sends
        }
    }

    private String acks(String topic, int count, boolean transactional) throws Exception {
        try (Consumer<byte[]> consumer = consumer(topic)) {
            take(consumer, transactional);
            long began = System.nanoTime();
            for (int i = 0; i < count / GROUP; i++) {
                take(consumer, transactional);
            }
            return rate(count, began);
        }
    }

    private void take(Consumer<byte[]> consumer, boolean transactional) throws Exception {
        List<MessageId> ids = new ArrayList<>(GROUP);
        for (int i = 0; i < GROUP; i++) {
            ids.add(consumer.receive().getMessageId());
        }
        Transaction txn = transactional ? begin().get() : null;
        consumer.acknowledgeAsync(ids, txn).get();
        if (txn != null) {
            txn.commit().get();
        }
    }

    private String singles(String topic, int count, int parallel, String kind) throws Exception {
        try (Consumer<byte[]> consumer = consumer(topic);
                Producer<byte[]> producer =
                        producer(topic + "-results-" + UUID.randomUUID())
                                .enableBatching(false)
                                .create()) {
            ConcurrentLinkedQueue<Long> nanos = new ConcurrentLinkedQueue<>();
            Supplier<CompletableFuture<Void>> timed =
                    () -> {
                        long began = System.nanoTime();
                        return single(consumer, producer, kind)
                                .thenRun(() -> nanos.add(System.nanoTime() - began));
                    };
            atOnce(parallel, 1, timed);
            nanos.clear();
            long began = System.nanoTime();
            atOnce(parallel, count / parallel, timed);
            double seconds = (System.nanoTime() - began) / 1e9;
            List<Long> sorted = nanos.stream().sorted().toList();
            double median = sorted.get(sorted.size() / 2) / 1e6;
            return "{\"per_s\": " + sorted.size() / seconds + ", \"p50_ms\": " + median + "}";
        }
    }

    private CompletableFuture<Void> single(
            Consumer<byte[]> consumer, Producer<byte[]> producer, String kind) {
        return switch (kind) {
            case "empty" -> begin().thenCompose(Transaction::commit);
            case "plain" ->
                    consumer.receiveAsync()
                            .thenCompose(each -> forward(consumer, producer, each, null));
            default -> consumer.receiveAsync().thenCompose(each -> commit(consumer, producer, each));
        };
    }

    private CompletableFuture<Void> commit(
            Consumer<byte[]> consumer, Producer<byte[]> producer, Message<byte[]> message) {
        return begin().thenCompose(
                        txn ->
                                forward(consumer, producer, message, txn)
                                        .thenCompose(done -> txn.commit()));
    }

    private static CompletableFuture<Void> forward(
            Consumer<byte[]> consumer,
            Producer<byte[]> producer,
            Message<byte[]> message,
            Transaction txn) {
        return CompletableFuture.allOf(
                message(producer, txn).sendAsync(),
                consumer.acknowledgeAsync(message.getMessageId(), txn));
    }

    private static void atOnce(int parallel, int times, Supplier<CompletableFuture<Void>> step)
            throws Exception {
        List<CompletableFuture<Void>> chains = new ArrayList<>();
        for (int i = 0; i < parallel; i++) {
            chains.add(repeated(times, step));
        }
        CompletableFuture.allOf(chains.toArray(CompletableFuture[]::new)).get();
    }

    private static CompletableFuture<Void> repeated(
            int times, Supplier<CompletableFuture<Void>> step) {
        return times == 0
                ? CompletableFuture.completedFuture(null)
                : step.get().thenCompose(done -> repeated(times - 1, step));
    }

    private CompletableFuture<Transaction> begin() {
        return client.newTransaction().withTransactionTimeout(60, TimeUnit.SECONDS).build();
    }

    private ProducerBuilder<byte[]> producer(String topic) {
        return client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS);
    }

    private static TypedMessageBuilder<byte[]> message(Producer<byte[]> producer, Transaction txn) {
        return (txn == null ? producer.newMessage() : producer.newMessage(txn)).value(PAYLOAD);
    }

    private Consumer<byte[]> consumer(String topic) throws PulsarClientException {
        return client.newConsumer()
                .topic(topic)
                .subscriptionName(UUID.randomUUID().toString())
                .subscriptionType(SubscriptionType.Exclusive)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .enableBatchIndexAcknowledgment(true)
                .isAckReceiptEnabled(true)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .subscribe();
    }

    private static String rate(int count, long began) {
        return "{\"per_s\": " + count / ((System.nanoTime() - began) / 1e9) + "}";
    }
}
