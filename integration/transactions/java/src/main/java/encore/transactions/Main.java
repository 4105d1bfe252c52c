package encore.transactions;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Transactions of Java's client, driven line by line: {@code NUMBER SESSION VERB ARGUMENTS...} on
 * stdin, {@code NUMBER REPORT WORDS...} on stdout. Each session has a client of its own, and each
 * line a thread, so that a line may wait while others of the session run. The report is "ok" or the
 * simple name of the exception.
 *
 * <pre>
 * open URL OPERATION_TIMEOUT_MS
 * producer TOPIC SEND_TIMEOUT_MS   without batches
 * consumer TOPIC TYPE              subscription "s", from the earliest message
 * begin NAME TIMEOUT_MS            answers the id
 * send NAME VALUE
 * receive COUNT WITHIN_MS          answers up to COUNT values
 * ack NAME VALUE                   acks the last delivery of a value
 * ack-cumulative NAME VALUE
 * commit NAME
 * abort NAME
 * close
 * </pre>
 */
public final class Main {
    private static final Map<String, Main> SESSIONS = new ConcurrentHashMap<>();

    private final Map<String, Transaction> transactions = new ConcurrentHashMap<>();
    private final Map<String, MessageId> received = new ConcurrentHashMap<>();
    private PulsarClient client;
    private Producer<byte[]> producer;
    private Consumer<byte[]> consumer;

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            threads.execute(() -> answer(words));
        }
        System.exit(0);
    }

    private static void answer(String[] words) {
        String report;
        try {
            Main session = SESSIONS.computeIfAbsent(words[1], name -> new Main());
            report = String.join(" ", session.run(words)).strip();
        } catch (Throwable error) {
            Throwable cause = error;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            report = cause.getClass().getSimpleName();
            System.err.println(String.join(" ", words) + ": " + cause);
        }
        System.out.println(words[0] + " " + report);
    }

    private List<String> run(String[] words) throws Exception {
        List<String> answer = new ArrayList<>(List.of("ok"));
        switch (words[2]) {
            case "open" -> client = PulsarClient.builder().serviceUrl(words[3])
                    .operationTimeout(Integer.parseInt(words[4]), TimeUnit.MILLISECONDS)
                    .enableTransaction(true).ioThreads(1).listenerThreads(1).build();
            case "producer" -> producer = client.newProducer().topic(words[3])
                    .enableBatching(false)
                    .sendTimeout(Integer.parseInt(words[4]), TimeUnit.MILLISECONDS).create();
            case "consumer" -> consumer = client.newConsumer().topic(words[3])
                    .subscriptionName("s").subscriptionType(SubscriptionType.valueOf(words[4]))
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .enableBatchIndexAcknowledgment(true).subscribe();
            case "begin" -> {
                Transaction begun = client.newTransaction()
                        .withTransactionTimeout(Long.parseLong(words[4]), TimeUnit.MILLISECONDS)
                        .build().get();
                transactions.put(words[3], begun);
                answer.add(begun.getTxnID().toString());
            }
            case "send" -> producer.newMessage(transactions.get(words[3]))
                    .value(words[4].getBytes(StandardCharsets.UTF_8)).send();
            case "receive" -> answer.addAll(receive(
                    Integer.parseInt(words[3]), Integer.parseInt(words[4])));
            case "ack" -> wait(consumer.acknowledgeAsync(
                    received.get(words[4]), transactions.get(words[3])));
            case "ack-cumulative" -> wait(consumer.acknowledgeCumulativeAsync(
                    received.get(words[4]), transactions.get(words[3])));
            case "commit" -> wait(transactions.get(words[3]).commit());
            case "abort" -> wait(transactions.get(words[3]).abort());
            case "close" -> client.close();
            default -> throw new IllegalArgumentException(words[2]);
        }
        return answer;
    }

    private List<String> receive(int count, int withinMs) throws Exception {
        List<String> values = new ArrayList<>();
        while (values.size() < count) {
            Message<byte[]> message = consumer.receive(withinMs, TimeUnit.MILLISECONDS);
            if (message == null) {
                break;
            }
            String value = new String(message.getData(), StandardCharsets.UTF_8);
            received.put(value, message.getMessageId());
            values.add(value);
        }
        return values;
    }

    private static void wait(CompletableFuture<Void> result) throws Exception {
        result.get();
    }
}
