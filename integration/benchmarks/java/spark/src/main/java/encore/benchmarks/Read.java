package encore.benchmarks;

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import org.apache.spark.sql.DataFrameWriter;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/**
 * Reads topics in Spark with StreamNative's connector, and prints seconds and CPU time.
 *
 * <p>The arguments are a service URL, the URL of the admin API and Spark's master. Each line of
 * standard input, "TOPIC FOLDER", is one query over all messages of a topic. It writes Parquet into
 * the folder, or discards the rows if the folder is "noop". Each answer is a line of JSON. CPU time
 * is that of the process.
 */
public final class Read {
    private Read() {}

    public static void main(String[] arguments) throws Exception {
        OperatingSystemMXBean system =
                (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        SparkSession spark =
                SparkSession.builder()
                        .master(arguments[2])
                        .config("spark.ui.enabled", "false")
                        .config("spark.driver.bindAddress", "127.0.0.1")
                        .getOrCreate();
        spark.sparkContext().setLogLevel("OFF");
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line; (line = lines.readLine()) != null; ) {
                String[] words = line.split(" ");
                long began = System.nanoTime();
                long cpu = system.getProcessCpuTime();
                DataFrameWriter<Row> writer =
                        spark.read()
                                .format("pulsar")
                                .option("service.url", arguments[0])
                                .option("admin.url", arguments[1])
                                .option("topic", words[0])
                                .load()
                                .write()
                                .mode("overwrite");
                if (words[1].equals("noop")) {
                    writer.format("noop").save();
                } else {
                    writer.parquet(words[1]);
                }
                double seconds = (System.nanoTime() - began) / 1e9;
                double cpuSeconds = (system.getProcessCpuTime() - cpu) / 1e9;
                System.out.println(
                        "{\"seconds\": " + seconds + ", \"cpu_s\": " + cpuSeconds + "}");
            }
        }
        spark.stop();
        System.exit(0); // threads of the connector's clients keep the JVM alive
    }
}
