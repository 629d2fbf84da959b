//! The actions, one per file.

mod adding_ssh_keys_to_authorized_keys;
mod change_namespace_privileges_via_unshare;
mod change_thread_namespace;
mod clear_log_activities;
mod connection;
mod contact_ec2_instance_metadata_service_from_container;
mod contact_k8_sapi_server_from_container;
mod container_drift_detected_chmod;
mod container_drift_detected_open_create;
mod create_files_below_dev;
mod create_hardlink_over_sensitive_files;
mod create_hidden_files_or_directories;
mod create_symlink_over_sensitive_files;
mod db_program_spawned_process;
mod debugfs_launched_in_privileged_container;
mod decoding_payload_in_container;
mod delete_or_rename_shell_history;
mod detect_crypto_miners_using_the_stratum_protocol;
mod detect_release_agent_file_container_escapes;
mod directory_traversal_monitored_file_read;
mod disallowed_ssh_connection_non_standard_port;
mod drop_and_execute_new_binary_in_container;
mod execution_from_dev_shm;
mod fileless_execution_via_memfd_create;
mod find_aws_credentials;
mod interpreted_procs_inbound_network_activity;
mod interpreted_procs_outbound_network_activity;
mod java_process_class_file_download;
mod kubernetes_client_tool_launched_in_container;
mod launch_ingress_remote_file_copy_tools_in_container;
mod launch_package_management_process_in_container;
mod launch_remote_file_copy_tools_in_container;
mod launch_suspicious_network_tool_in_container;
mod launch_suspicious_network_tool_on_host;
mod linux_kernel_module_injection_detected;
mod mkdir_binary_dirs;
mod modify_binary_dirs;
mod modify_container_entrypoint;
mod modify_shell_configuration_file;
mod mount_launched_in_privileged_container;
mod netcat_remote_code_execution_in_container;
mod non_sudo_setuid;
mod packet_socket_created_in_container;
mod polkit_local_privilege_escalation_vulnerability_cve20214034;
mod potential_local_privilege_escalation_via_environment_variables_misuse;
mod program_run_with_disallowed_http_proxy_env;
mod ptrace_anti_debug_attempt;
mod ptrace_attached_to_process;
mod read_environment_variable_from_proc_files;
mod read_sensitive_file_trusted_after_startup;
mod read_sensitive_file_untrusted;
mod read_shell_configuration_file;
mod read_ssh_information;
mod redirect_stdoutstdin_to_network_connection_in_container;
mod remove_bulk_data_from_disk;
mod run_shell_untrusted;
mod schedule_cron_jobs;
mod search_private_keys_or_passwords;
mod set_setuid_or_setgid_bit;
mod sudo_potential_privilege_escalation;
mod system_procs_network_activity;
mod system_user_interactive;
mod unexpected_udp_traffic;
mod unprivileged_delegation_of_page_faults_handling_to_a_userspace_process;
mod user_mgmt_binaries;
mod write_below_binary_dir;
mod write_below_etc;
mod write_below_monitored_dir;
mod write_below_root;
mod write_below_rpm_database;

use super::Action;

/// The table of actions, sorted by name.
#[rustfmt::skip]
pub(super) const ACTIONS: &[&Action] = &[
    &adding_ssh_keys_to_authorized_keys::ACTION,
    &change_namespace_privileges_via_unshare::ACTION,
    &change_thread_namespace::ACTION,
    &clear_log_activities::ACTION,
    &contact_ec2_instance_metadata_service_from_container::ACTION,
    &contact_k8_sapi_server_from_container::ACTION,
    &container_drift_detected_chmod::ACTION,
    &container_drift_detected_open_create::ACTION,
    &create_files_below_dev::ACTION,
    &create_hardlink_over_sensitive_files::ACTION,
    &create_hidden_files_or_directories::ACTION,
    &create_symlink_over_sensitive_files::ACTION,
    &db_program_spawned_process::ACTION,
    &debugfs_launched_in_privileged_container::ACTION,
    &decoding_payload_in_container::ACTION,
    &delete_or_rename_shell_history::ACTION,
    &detect_crypto_miners_using_the_stratum_protocol::ACTION,
    &detect_release_agent_file_container_escapes::ACTION,
    &directory_traversal_monitored_file_read::ACTION,
    &disallowed_ssh_connection_non_standard_port::ACTION,
    &drop_and_execute_new_binary_in_container::ACTION,
    &execution_from_dev_shm::ACTION,
    &fileless_execution_via_memfd_create::ACTION,
    &find_aws_credentials::ACTION,
    &interpreted_procs_inbound_network_activity::ACTION,
    &interpreted_procs_outbound_network_activity::ACTION,
    &java_process_class_file_download::ACTION,
    &kubernetes_client_tool_launched_in_container::ACTION,
    &launch_ingress_remote_file_copy_tools_in_container::ACTION,
    &launch_package_management_process_in_container::ACTION,
    &launch_remote_file_copy_tools_in_container::ACTION,
    &launch_suspicious_network_tool_in_container::ACTION,
    &launch_suspicious_network_tool_on_host::ACTION,
    &linux_kernel_module_injection_detected::ACTION,
    &mkdir_binary_dirs::ACTION,
    &modify_binary_dirs::ACTION,
    &modify_container_entrypoint::ACTION,
    &modify_shell_configuration_file::ACTION,
    &mount_launched_in_privileged_container::ACTION,
    &netcat_remote_code_execution_in_container::ACTION,
    &non_sudo_setuid::ACTION,
    &packet_socket_created_in_container::ACTION,
    &polkit_local_privilege_escalation_vulnerability_cve20214034::ACTION,
    &potential_local_privilege_escalation_via_environment_variables_misuse::ACTION,
    &program_run_with_disallowed_http_proxy_env::ACTION,
    &ptrace_anti_debug_attempt::ACTION,
    &ptrace_attached_to_process::ACTION,
    &read_environment_variable_from_proc_files::ACTION,
    &read_sensitive_file_trusted_after_startup::ACTION,
    &read_sensitive_file_untrusted::ACTION,
    &read_shell_configuration_file::ACTION,
    &read_ssh_information::ACTION,
    &redirect_stdoutstdin_to_network_connection_in_container::ACTION,
    &remove_bulk_data_from_disk::ACTION,
    &run_shell_untrusted::ACTION,
    &schedule_cron_jobs::ACTION,
    &search_private_keys_or_passwords::ACTION,
    &set_setuid_or_setgid_bit::ACTION,
    &sudo_potential_privilege_escalation::ACTION,
    &system_procs_network_activity::ACTION,
    &system_user_interactive::ACTION,
    &unexpected_udp_traffic::ACTION,
    &unprivileged_delegation_of_page_faults_handling_to_a_userspace_process::ACTION,
    &user_mgmt_binaries::ACTION,
    &write_below_binary_dir::ACTION,
    &write_below_etc::ACTION,
    &write_below_monitored_dir::ACTION,
    &write_below_root::ACTION,
    &write_below_rpm_database::ACTION,
];
