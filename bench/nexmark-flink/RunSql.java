import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Runs a file of Flink SQL statements on an embedded Flink cluster, in streaming mode, with the settings in the folder
 * that FLINK_CONF_DIR names. Waits for each INSERT and prints its wall seconds, the CPU seconds of the whole process, the
 * completed checkpoints and the process's peak memory; prints what a query returns.
 */
public final class RunSql {
    private static final Pattern SET = Pattern.compile("(?is)SET\\s+'([^']+)'\\s*=\\s*'([^']*)'");
    private static final OperatingSystemMXBean PROCESS =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    public static void main(String[] args) {
        try {
            run(args[0]);
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String file) throws Exception {
        Configuration settings = GlobalConfiguration.loadConfiguration(System.getenv("FLINK_CONF_DIR"));
        warmUp(settings);
        TableEnvironment tables = environment(settings);
        for (String statement : statements(Files.readString(Path.of(file)))) {
            Matcher set = SET.matcher(statement);
            if (set.matches()) {
                tables.getConfig().set(set.group(1), set.group(2));
                continue;
            }
            String verb = statement.split("[\\s(]+", 2)[0].toUpperCase(Locale.ROOT);
            long checkpoints = completedCheckpoints();
            long cpu = PROCESS.getProcessCpuTime();
            long start = System.nanoTime();
            TableResult result = tables.executeSql(statement);
            if (verb.equals("INSERT") || verb.equals("EXECUTE")) {
                result.await();
                System.out.printf(
                        Locale.ROOT,
                        "JOB_SECONDS %.3f%nJOB_CPU_SECONDS %.3f%nCOMPLETED_CHECKPOINTS %d%nPEAK_RESIDENT_MIB %d%n",
                        (System.nanoTime() - start) / 1e9,
                        (PROCESS.getProcessCpuTime() - cpu) / 1e9,
                        completedCheckpoints() - checkpoints,
                        peakResidentMib());
            } else if (!verb.equals("CREATE") && !verb.equals("DROP") && !verb.equals("USE")) {
                result.print();
            }
        }
    }

    private static TableEnvironment environment(Configuration settings) {
        return TableEnvironment.create(
                EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(settings).build());
    }

    /** Loads planner, runtime and state backend with a job of a few rows, so that no timed job pays for it. */
    private static void warmUp(Configuration settings) throws Exception {
        TableEnvironment tables = environment(settings);
        tables.executeSql("CREATE TABLE i (a BIGINT) WITH ('connector' = 'datagen', 'number-of-rows' = '100')");
        tables.executeSql("CREATE TABLE o (a BIGINT, n BIGINT) WITH ('connector' = 'blackhole')");
        tables.executeSql("INSERT INTO o SELECT a, COUNT(*) FROM i GROUP BY a").await();
    }

    private static long completedCheckpoints() throws Exception {
        Path log = Path.of(System.getProperty("log.file"));
        if (!Files.exists(log)) {
            return 0;
        }
        try (var lines = Files.lines(log)) {
            return lines.filter(line -> line.contains(" Completed checkpoint ")).count();
        }
    }

    private static long peakResidentMib() throws Exception {
        try (var lines = Files.lines(Path.of("/proc/self/status"))) {
            String peak = lines.filter(line -> line.startsWith("VmHWM:")).findFirst().orElse("VmHWM: 0 kB");
            return Long.parseLong(peak.replaceAll("\\D", "")) / 1024;
        }
    }

    /** Splits at semicolons outside quotes, comments and BEGIN ... END; drops comments, keeps hints. */
    private static List<String> statements(String text) {
        List<String> found = new ArrayList<>();
        StringBuilder current = new StringBuilder();
        char quote = 0;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (quote == 0 && text.startsWith("--", i)) {
                int end = text.indexOf('\n', i);
                i = end < 0 ? text.length() : end;
                current.append('\n');
            } else if (quote == 0 && text.startsWith("/*", i) && !text.startsWith("/*+", i)) {
                int end = text.indexOf("*/", i + 2);
                i = end < 0 ? text.length() : end + 1;
                current.append(' ');
            } else if (quote == 0 && c == ';' && !insideStatementSet(current)) {
                found.add(current.toString().strip());
                current.setLength(0);
            } else {
                if (quote == 0 && (c == '\'' || c == '`' || c == '"')) {
                    quote = c;
                } else if (c == quote) {
                    quote = 0;
                }
                current.append(c);
            }
        }
        found.add(current.toString().strip());
        found.removeIf(String::isEmpty);
        return found;
    }

    private static boolean insideStatementSet(CharSequence statement) {
        String upper = statement.toString().strip().toUpperCase(Locale.ROOT);
        return upper.matches("(?s)EXECUTE\\s+STATEMENT\\s+SET\\s+BEGIN\\b.*") && !upper.matches("(?s).*;\\s*END");
    }
}
